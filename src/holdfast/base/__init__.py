"""What everything else uses: steps, codecs, forks, stopping."""

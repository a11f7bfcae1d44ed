"""What each kind of store and sink must do, as pytest classes to inherit; one suite per protocol."""

"""The verbs, one module each; loaded when they are called."""

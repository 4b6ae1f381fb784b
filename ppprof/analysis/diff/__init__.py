"""Two runs compared: operators, modules, significance, thresholds."""

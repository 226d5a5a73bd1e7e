"""The programs: the hub, the plugin, the web page and the command line."""

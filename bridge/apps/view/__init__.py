"""What users see of pods, jobs, nodes and pools, derived once for the command line and the web page. Pure."""

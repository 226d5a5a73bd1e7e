"""HTTP clients: libcurl for the calls of each pod, requests for the others."""

"""Services reach pods at sites: listeners for their exposed ports, and the EndpointSlices that name them."""

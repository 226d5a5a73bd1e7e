"""The process of the hub: creates its parts, starts them and stops them."""

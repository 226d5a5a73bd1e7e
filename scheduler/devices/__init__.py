"""The devices of waiting pods: ResourceClaims, and devices that are taken."""

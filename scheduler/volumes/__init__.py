"""The volumes of waiting pods: which nodes they allow, and the writes that bind them."""

"""The vocabulary of pools: types that the hub and a site share, whatever carries them. Times are seconds since 1970."""

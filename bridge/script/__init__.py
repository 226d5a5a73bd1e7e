"""A pod and a BuildConfig become one bash script."""

"""MasterQueues: the ResourceFlavors and ClusterQueues of Kueue that follow the pools."""

"""The workload controller: releases the jobs of ended pods, and terminates the pods of ended jobs."""

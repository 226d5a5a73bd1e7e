"""Many connections over one stream: the program that runs beside a job, and the other end of its stream."""

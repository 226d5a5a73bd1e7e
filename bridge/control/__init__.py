"""What the scheduler and the controllers share: the control loop and the mass-termination guard."""

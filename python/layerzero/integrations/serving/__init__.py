"""What the integrations of serving engines share: page lists, and which calls have kernels on this machine."""

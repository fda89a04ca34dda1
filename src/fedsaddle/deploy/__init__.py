"""Setting up a federation of real machines: certificates, keys, the app folder, a rehearsal."""

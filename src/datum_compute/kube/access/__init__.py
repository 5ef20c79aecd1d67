"""How a program is let in: kubeconfigs, credentials and TLS."""

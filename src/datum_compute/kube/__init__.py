"""The wire: how objects of any Kubernetes API are read, written and watched. Knows nothing of what they mean."""

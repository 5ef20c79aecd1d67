"""The nouns of compute: its kinds and their schemas, and the names, labels and reasons that all planes share."""

GROUP = "compute.datumapis.com"
VERSION = "v1alpha"

"""The nouns of compute: its kinds, their schemas, and the names, labels and reasons that every plane agrees on."""

GROUP = "compute.datumapis.com"
VERSION = "v1alpha"

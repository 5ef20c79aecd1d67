//go:build tools

// Package tools keeps what this module builds among its requirements.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)

//go:build tools

// Package tools keeps what this module builds among its requirements.
package tools

import (
	_ "sigs.k8s.io/kwok/cmd/kwok"
)

//go:build tools

// Package tools keeps what this module builds among its requirements.
package tools

import (
	_ "go.etcd.io/etcd/server/v3"
)

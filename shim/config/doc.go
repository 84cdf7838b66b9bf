// Package config reads cryo's configuration file, for the shim and the command line alike.
//
// The file is /etc/cryo/config.toml, or what the environment variable CRYO_CONFIG names. Without a file the defaults
// hold; a key the file should not have is an error. Flags and environment variables of the command line win over it.
//
// # Sizes
//
// This part says bytes as people read and write them, in units of 1024.
package config

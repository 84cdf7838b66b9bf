package config

// Checkpoint says where the annotation io.cryo.checkpoint-to may have snapshots sent. Whoever creates containers writes annotations, so nothing is allowed by default.
type Checkpoint struct {
	// Repositories are prefixes of what is allowed, as in [Policy]. Default: none.
	Repositories []string `toml:"repositories"`
	// Credentials is a file in the form of Docker's config.json. Default: the one of the user that containerd runs as.
	Credentials string `toml:"credentials"`
	// PlainHTTP are registries, HOST[:PORT], that are spoken to without TLS. Default: none.
	PlainHTTP []string `toml:"plain-http"`
}

// Allows tells whether a normalised reference is of one of the repositories.
func (c Checkpoint) Allows(ref string) bool { return below(c.Repositories, ref) }

// Plain tells whether the registry of a normalised reference is spoken to without TLS.
func (c Checkpoint) Plain(ref string) bool { return at(c.PlainHTTP, ref) }

func (c Checkpoint) validate() error {
	return checkRegistries("checkpoint", c.Repositories, c.PlainHTTP, c.Credentials)
}

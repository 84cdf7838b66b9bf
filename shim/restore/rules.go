package restore

// Rules are the names by which a restore that a container asks for may be refused, beside those of package fit. A name stands ahead of the reason.
func Rules() []string {
	return []string{
		ruleMounts, ruleNamespaces, ruleTerminal, ruleUser, ruleUserMaps, ruleReadonly, ruleSeccomp, ruleBaseImage, ruleGPUs,
		"restore-annotation", "rootfs-fresh", "restart",
	}
}

// NotAllowed says that the host's configuration does not allow containers to be restored from a snapshot.
func NotAllowed(ref string) error { return notAllowed(ref) }

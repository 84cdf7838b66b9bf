package restore

// Rules are the names by which a restore that a container asks for may be refused, beside those of package fit. A name stands ahead of the reason.
func Rules() []string {
	return []string{
		ruleMounts, ruleNamespaces, ruleTerminal, ruleUser, ruleUserMaps, ruleReadonly, ruleSeccomp, ruleBaseImage, ruleGPUNodes, rulePIDs,
		"restore-policy", "rootfs-fresh", "restart",
	}
}

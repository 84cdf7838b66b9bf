package order

// allowFile says what a restored container may have beyond its specification.
const allowFile = "cryo-allow.json"

// Allow writes the grants that whoever restores allows into CRIU's work directory, for the comparison that the shim makes before the container runs.
func Allow(work string, grants []string) error {
	return write(work, allowFile, "tell the shim what is allowed", grants)
}

// Allowed reads them. A client that writes none, such as ctr, allows nothing beyond the specification that it gives.
func Allowed(work string) (grants []string, err error) {
	_, _, err = read(work, allowFile, "read what is allowed", &grants)
	return grants, err
}

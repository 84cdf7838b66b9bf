package lab

// WriteImage writes an OCI archive of an image, named ref, of some files and nothing else.
func WriteImage(archive, ref string, command []string, files []File) error {
	_, err := writeLayout(archive, ref, command, files, nil)
	return err
}

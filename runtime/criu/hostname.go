package criu

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/checkpoint-restore/go-criu/v8/crit/images/utsns"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

// SetHostname gives the container's UTS namespace other names in the images in dir. CRIU writes those of the images also into a namespace that the container only joins,
// which is that of a whole pod. Source: CRIU 4.2, criu/uts_ns.c, prepare_utsns.
func SetHostname(dir, node, domain string) error {
	files, err := filepath.Glob(filepath.Join(dir, "utsns-*.img"))
	if err != nil {
		return fmt.Errorf("find the images of the UTS namespace: %w", err)
	}
	for _, file := range files {
		if err := setHostname(file, node, domain); err != nil {
			return fmt.Errorf("set the hostname in %s: %w", filepath.Base(file), err)
		}
	}
	return nil
}

// setHostname writes the one record of the image anew. It follows two magic numbers and its length. Source: criu/image.c.
func setHostname(file, node, domain string) error {
	const head = 8
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if len(data) < head+4 || int64(binary.LittleEndian.Uint32(data[head:])) != int64(len(data)-head-4) {
		return errors.Join(errors.New("it has not one record"), errdefs.ErrDataLoss)
	}
	var names utsns.UtsnsEntry
	if err := proto.Unmarshal(data[head+4:], &names); err != nil {
		return errors.Join(err, errdefs.ErrDataLoss)
	}
	names.Nodename, names.Domainname = &node, &domain
	record, err := proto.Marshal(&names)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(binary.LittleEndian.AppendUint32(data[:head:head], uint32(len(record))), record...), 0o600)
}

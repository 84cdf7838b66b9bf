package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/containerd/v2/pkg/protobuf/proto"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/pelletier/go-toml/v2"
)

// runcOptions understands the three kinds of options a client may send: runc's own, CRI's TOML, and none. Unless they say it, a cgroup path of the form
// slice:prefix:name says that systemd manages cgroups: CRI writes it where the kubelet has systemd do that. In runc's own, "false" and "not given" are the same.
func runcOptions(sent typeurl.Any, cgroupsPath string) (*options.Options, error) {
	systemd := strings.Count(cgroupsPath, ":") == 2
	if sent == nil || len(sent.GetValue()) == 0 && sent.GetTypeUrl() == "" {
		return &options.Options{SystemdCgroup: systemd}, nil
	}
	v, err := typeurl.UnmarshalAny(sent)
	if err != nil {
		return nil, fmt.Errorf("read runtime options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	switch o := v.(type) {
	case *options.Options:
		o.SystemdCgroup = o.SystemdCgroup || systemd
		return o, nil
	case *runtimeoptions.Options:
		return tomlOptions(o, systemd)
	}
	return nil, fmt.Errorf("read runtime options: type %s is neither runc's nor CRI's: %w", sent.GetTypeUrl(), errdefs.ErrInvalidArgument)
}

// tomlOptions reads what CRI passes on from [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.NAME.options].
// The keys are those of runc's options in containerd's documentation, in any case. systemd is SystemdCgroup where that is not among them.
func tomlOptions(o *runtimeoptions.Options, systemd bool) (*options.Options, error) {
	body := o.GetConfigBody()
	if path := o.GetConfigPath(); path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read runtime options: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		body = data
	}
	t := struct {
		*options.Options
		TypeURL    string // CRI's own, tells the type
		ConfigPath string // CRI's own
	}{Options: &options.Options{SystemdCgroup: systemd}}
	if err := toml.NewDecoder(bytes.NewReader(body)).DisallowUnknownFields().Decode(&t); err != nil {
		var strict *toml.StrictMissingError
		if errors.As(err, &strict) {
			return nil, fmt.Errorf("read runtime options: unknown key: %s: %w", strict.String(), errdefs.ErrInvalidArgument)
		}
		return nil, fmt.Errorf("read runtime options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	return t.Options, nil
}

// convertInfoOptions returns options of any kind, as containerd writes them to -info, in the form the stock manager reads.
func convertInfoOptions(data []byte) (io.Reader, error) {
	if len(data) == 0 {
		return bytes.NewReader(nil), nil
	}
	var sent ptypes.Any
	if err := proto.Unmarshal(data, &sent); err != nil {
		return nil, fmt.Errorf("read runtime options: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	o, err := runcOptions(&sent, "")
	if err != nil {
		return nil, err
	}
	converted, err := typeurl.MarshalAnyToProto(o)
	if err != nil {
		return nil, err
	}
	out, err := proto.Marshal(converted)
	if err != nil {
		return nil, err
	}
	return bytes.NewReader(out), nil
}

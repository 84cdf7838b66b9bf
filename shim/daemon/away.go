package daemon

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
)

// repeatable are containerd's services and those of their methods that change nothing when they are called twice.
var repeatable = map[string][]string{
	"containerd.services.containers.v1.Containers":       {"Get", "List", "ListStream", "Update", "Delete"},
	"containerd.services.content.v1.Content":             {"Info", "List", "Status", "ListStatuses", "Update", "Delete"},
	"containerd.services.images.v1.Images":               {"Get", "List", "Update", "Delete"},
	"containerd.services.introspection.v1.Introspection": {"Plugins", "Server", "PluginInfo"},
	"containerd.services.leases.v1.Leases":               {"List", "ListResources", "AddResource", "DeleteResource", "Delete"},
	"containerd.services.namespaces.v1.Namespaces":       {"Get", "List"},
	"containerd.services.snapshots.v1.Snapshots":         {"Stat", "List", "Usage", "Mounts", "Update", "Remove"},
	"containerd.services.tasks.v1.Tasks":                 {"Get", "List", "ListPids", "Metrics", "Delete", "DeleteProcess", "Kill"},
	"containerd.services.version.v1.Version":             {"Version"},
}

// retries has gRPC repeat a call that changes nothing by that, where containerd goes away during the call or before, for about as long as patience: soon at first,
// then each second. Any other call returns an error for which
// [Gone] is true: the caller cannot know whether containerd has done it. Source: https://github.com/grpc/proposal/blob/master/A6-client-retries.md
func retries(patience time.Duration) []grpc.DialOption {
	if patience <= 0 {
		return nil
	}
	attempts := 5 + int(patience/time.Second)
	type method struct {
		Service string `json:"service"`
		Method  string `json:"method"`
	}
	var names []method
	for _, service := range slices.Sorted(maps.Keys(repeatable)) {
		for _, m := range repeatable[service] {
			names = append(names, method{service, m})
		}
	}
	config, err := json.Marshal(map[string]any{"methodConfig": []any{map[string]any{
		"name": names,
		"retryPolicy": map[string]any{
			"maxAttempts": attempts, "initialBackoff": "0.05s", "backoffMultiplier": 2, "maxBackoff": "1s", "retryableStatusCodes": []string{"UNAVAILABLE"},
		},
	}}})
	if err != nil {
		panic(err) // it is of strings and numbers
	}
	return []grpc.DialOption{grpc.WithDefaultServiceConfig(string(config)), grpc.WithMaxCallAttempts(attempts)}
}

// Gone reports whether an error, of gRPC or of errdefs, says that containerd has gone away during a call: what it has passed on to a shim goes on. A shim
// that has gone away is another matter.
func Gone(err error) bool {
	return (grpcstatus.Code(err) == codes.Unavailable || errdefs.IsUnavailable(err)) && !ShimGone(err)
}

// ShimGone reports whether an error of containerd says that a shim has gone away during a call.
func ShimGone(err error) bool { return strings.Contains(err.Error(), "ttrpc: closed") }

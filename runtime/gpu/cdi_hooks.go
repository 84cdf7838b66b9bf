package gpu

import (
	"reflect"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// lists are the lists of hooks, in the order they run.
func lists(h *specs.Hooks) []*[]specs.Hook {
	//lint:ignore SA1019 Prestart is deprecated, and CDI files have it all the same
	return []*[]specs.Hook{&h.Prestart, &h.CreateRuntime, &h.CreateContainer, &h.StartContainer, &h.Poststart, &h.Poststop}
}

func sameHook(a, b specs.Hook) bool { return reflect.DeepEqual(a, b) }

func containsHooks(have, want *specs.Hooks) bool {
	if want == nil {
		return true
	}
	if have == nil {
		have = &specs.Hooks{}
	}
	of := lists(have)
	for i, list := range lists(want) {
		if !contains(*of[i], *list, sameHook) {
			return false
		}
	}
	return true
}

// stripHooks removes hooks; a specification that has none left has no member for them.
func stripHooks(spec *specs.Spec, gone *specs.Hooks) {
	if spec.Hooks == nil || gone == nil {
		return
	}
	left := 0
	remove := lists(gone)
	for i, list := range lists(spec.Hooks) {
		*list = without(*list, *remove[i], sameHook)
		left += len(*list)
	}
	if left == 0 {
		spec.Hooks = nil
	}
}

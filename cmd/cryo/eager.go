package main

import "github.com/cryo-project/cryo/runtime/lazypages"

// eager says why a container's memory is not filled in while it runs; empty: it is.
func (a *app) eager(f restoreFlags) string {
	if f.eager {
		return "--eager"
	}
	c, err := a.config()
	switch {
	case err != nil:
		return err.Error()
	case !c.Restore.Lazy:
		return "restore.lazy is false in the configuration"
	}
	if err := lazypages.Supported(); err != nil {
		return err.Error()
	}
	return ""
}

package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cryo-project/cryo/image"
	"github.com/cryo-project/cryo/shim/config"
	"github.com/cryo-project/cryo/shim/save"
)

// gpuNeeds puts into words what a host must have for a snapshot's GPUs.
func gpuNeeds(g *image.GPU) string {
	each, _ := g.Need()
	branch, _, _ := strings.Cut(g.Driver, ".")
	text := fmt.Sprintf("NVIDIA driver %s (branch %s), as many GPUs (%d)", g.Driver, branch, len(g.Devices))
	for i, d := range g.Devices {
		text += fmt.Sprintf(", GPU %d of architecture %s with %s free", i, d.Architecture, config.Size(each[i]))
	}
	return text
}

// ofDevices is the part of a line about memory; empty where none of it is of devices.
func ofDevices(m image.Memory) string {
	if m.Device == 0 {
		return ""
	}
	return config.Size(m.Device) + " of GPUs and "
}

// gpuRows are lines of cryo inspect about GPUs.
func gpuRows(g *image.GPU) [][]string {
	rows := [][]string{{"", gpuNeeds(g)}}
	if len(g.CDI) > 0 {
		rows = append(rows, []string{"GPUs by:", "CDI, " + strings.Join(g.CDI, ", ")})
	} else {
		rows = append(rows, []string{"GPUs by:", "device nodes"})
	}
	engine := g.Engine
	if engine == image.KeeperEngine {
		engine += fmt.Sprintf(", %s handed over in %d pieces", config.Size(g.HandedOver()), len(g.Pieces()))
	}
	rows = append(rows, []string{"GPU engine:", engine})
	if g.Library != nil {
		rows = append(rows, []string{"GPU library:", strings.TrimSpace(g.Library.Version + " " + g.Library.Digest.String())})
	}
	if len(g.Forced) > 0 {
		rows = append(rows, []string{"Overridden:", strings.Join(g.Forced, ", ") + ": the restore may fail"})
	}
	return rows
}

// savedIn is the part of a line about the freeze; empty without GPUs.
func savedIn(g *image.GPU) string {
	if g == nil {
		return ""
	}
	return gpuTimes(&save.GPUSeconds{Lock: g.Seconds.Lock, Save: g.Seconds.Checkpoint, Devices: g.Seconds.Devices, Bytes: g.HandedOver()})
}

// printGPUs prints the GPUs that a container had.
func (a *app) printGPUs(g *image.GPU) error {
	each, _ := g.Need()
	a.line("\nGPUs:")
	rows := [][]string{{"  NUMBER", "NAME", "ARCHITECTURE", "MEMORY", "HELD", "UUID"}}
	for i, d := range g.Devices {
		rows = append(rows, []string{"  " + strconv.Itoa(i), d.Name, d.Architecture, config.Size(d.Memory), config.Size(each[i]), d.UUID})
	}
	return a.table(rows...)
}

// heldBy returns what a process of a snapshot held on GPUs; empty if it used none.
func heldBy(g *image.GPU, pid int) string {
	i := slices.IndexFunc(g.Processes, func(p image.GPUProcess) bool { return p.PID == pid })
	if i < 0 {
		return ""
	}
	var on []string
	for _, uuid := range g.Processes[i].Devices {
		n := slices.IndexFunc(g.Devices, func(d image.GPUDevice) bool { return d.UUID == uuid })
		on = append(on, strconv.Itoa(n))
	}
	text := fmt.Sprintf("%s on %s", config.Size(g.Processes[i].Memory), strings.Join(on, ", "))
	if n := g.Processes[i].Handed(); n > 0 {
		text += fmt.Sprintf(" (%s handed over)", config.Size(n))
	}
	return text
}

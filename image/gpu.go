package image

import "github.com/cryo-project/cryo/image/spec"

// What a snapshot says of GPUs; see package spec.
type (
	GPU        = spec.GPU
	GPUDevice  = spec.GPUDevice
	GPUProcess = spec.GPUProcess
	GPUPiece   = spec.GPUPiece
	GPUNode    = spec.GPUNode
	GPUSeconds = spec.GPUSeconds
	GPULibrary = spec.GPULibrary
)

// Engines; see package spec.
const (
	DriverEngine = spec.DriverEngine
	KeeperEngine = spec.KeeperEngine
)

package image

import "github.com/cryo-project/cryo/image/record"

// What a snapshot says of GPUs; see package record.
type (
	GPU        = record.GPU
	GPUDevice  = record.GPUDevice
	GPUProcess = record.GPUProcess
	GPUPiece   = record.GPUPiece
	OwnedPiece = record.OwnedPiece
	GPUImport  = record.GPUImport
	GPUNode    = record.GPUNode
	GPUSeconds = record.GPUSeconds
	GPULibrary = record.GPULibrary
)

// Engines; see package record.
const (
	DriverEngine = record.DriverEngine
	KeeperEngine = record.KeeperEngine
)

package node

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cryo-project/cryo/image/spec/failure"
)

// metrics are what /metrics has. Values of labels are of small fixed sets.
type metrics struct {
	registry *prometheus.Registry

	prewarms *prometheus.CounterVec // by result
	phases   *prometheus.CounterVec // seconds, by phase
	fetched  prometheus.Counter     // bytes
	kept     *prometheus.GaugeVec   // by state
	disk     prometheus.Gauge       // bytes
	gpu      prometheus.Gauge       // bytes
	restores *prometheus.CounterVec // by whether it was prewarmed
	seconds  prometheus.Histogram
	cold     *prometheus.CounterVec // by reason
	waiting  prometheus.Counter
	api      *prometheus.CounterVec // requests to Kubernetes that have failed, by what for
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts{Name: name, Help: help} }
	m := &metrics{
		registry: prometheus.NewRegistry(),
		prewarms: prometheus.NewCounterVec(counter("cryo_prewarms_total", "Snapshots that were prewarmed, or could not be: done, or the kind of the error."), []string{"result"}),
		phases:   prometheus.NewCounterVec(counter("cryo_prewarm_phase_seconds_total", "Time spent on prewarming, by phase."), []string{"phase"}),
		fetched:  prometheus.NewCounter(counter("cryo_prewarm_fetched_bytes_total", "Bytes that came from registries for prewarmed snapshots.")),
		kept:     prometheus.NewGaugeVec(gauge("cryo_prewarm_snapshots", "Snapshots that are to be kept prewarmed: ready, pending or failed."), []string{"state"}),
		disk:     prometheus.NewGauge(gauge("cryo_prewarm_bytes", "Size of all prewarmed snapshots.")),
		gpu:      prometheus.NewGauge(gauge("cryo_prewarm_gpu_bytes", "Device memory that is kept loaded, on all GPUs.")),
		restores: prometheus.NewCounterVec(counter("cryo_restores_total", "Containers that were restored as they asked for, by whether their snapshot was prewarmed."), []string{"prewarmed"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cryo_restore_seconds", Help: "Time from the creation of a container's task until it was restored.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 12)}),
		cold:    prometheus.NewCounterVec(counter("cryo_cold_starts_total", "Containers that were started instead of restored, by the rule that refused the snapshot, or the kind of the error."), []string{"reason"}),
		waiting: prometheus.NewCounter(counter("cryo_restore_waits_total", "Times that the memory of a restored container did not come.")),
		api:     prometheus.NewCounterVec(counter("cryo_kubernetes_errors_total", "Requests to Kubernetes that have failed."), []string{"request"}),
	}
	m.registry.MustRegister(m.prewarms, m.phases, m.fetched, m.kept, m.disk, m.gpu, m.restores, m.seconds, m.cold, m.waiting, m.api)
	for _, state := range states {
		m.kept.WithLabelValues(state)
	}
	return m
}

// result is the value of a label for an error.
func result(err error) string {
	if err == nil {
		return "done"
	}
	return failure.Class(err)
}

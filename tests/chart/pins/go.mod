// What the definitions of ServiceMonitor, PodMonitor and PrometheusRule are taken from; nothing is built of it.
module definitions

go 1.24

require github.com/prometheus-operator/prometheus-operator v0.82.2

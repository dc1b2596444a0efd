{{- define "supervisor.name" -}}{{ .Values.fullnameOverride }}{{- end }}
{{- define "agent.name" -}}{{ .Values.fullnameOverride }}-agent{{- end }}
{{- define "metrics.name" -}}{{ .Values.fullnameOverride }}-metrics{{- end }}
{{- define "webhook.name" -}}{{ .Values.fullnameOverride }}-webhook{{- end }}
{{- define "audience" -}}{{ .Values.supervisor.settings.tokenAudience | default "job-supervisor.kube-ai.io" }}{{- end }}
{{- define "lease" -}}{{ .Values.supervisor.settings.leaseName | default "job-supervisor" }}{{- end }}

{{- define "labels.common" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "labels.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- /* Labels of an object that belongs to one of the two components. */}}
{{- define "labels" -}}
{{ include "labels.common" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "image" -}}
{{- $name := .image.repository -}}
{{- with .root.Values.images.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" .) $name }}{{ end -}}
{{- if .image.digest }}{{ $name }}@{{ .image.digest }}{{ else }}{{ $name }}:{{ .image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end }}

{{- /* The map `settings` as variables with a prefix. */}}
{{- define "settings" -}}
{{- $prefix := .prefix }}
{{- range $name, $value := .settings }}
{{- if kindIs "slice" $value }}{{ $value = join "," $value }}{{ else if not (kindIs "string" $value) }}{{ $value = toJson $value }}{{ end }}
- name: {{ $prefix }}_{{ snakecase $name | upper }}
  value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- define "container.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "pod.security" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* The ConfigMap with the CAs to trust. */}}
{{- define "ca.configmap" -}}
{{- .Values.tls.caConfigMap | default (printf "%s-ca" .Values.fullnameOverride) }}
{{- end }}

{{- /* The Secret of the CA and of what tokens are signed with, which the supervisor makes and helm never sees. */}}
{{- define "keys.secret" -}}{{ .Values.fullnameOverride }}-keys{{- end }}

{{- define "tls.secret" -}}
{{- if eq .Values.tls.mode "existingSecret" }}{{ .Values.tls.existingSecret }}{{ else }}{{ .Values.fullnameOverride }}-tls{{ end }}
{{- end }}

{{- /* All names that the certificate has to have, as a JSON list. */}}
{{- define "tls.names" -}}
{{- $name := .Values.fullnameOverride }}
{{- $namespace := .Release.Namespace }}
{{- $names := list $name (printf "%s.%s" $name $namespace) (printf "%s.%s.svc" $name $namespace) }}
{{- if .Values.webhook.enabled }}{{ $names = append $names (printf "%s.%s.svc" (include "webhook.name" .) $namespace) }}{{ end }}
{{- concat $names .Values.tls.extraNames | toJson }}
{{- end }}

{{- define "public.address" -}}
{{- .Values.supervisor.publicAddress | default (printf "https://%s.%s.svc:8471" .Values.fullnameOverride .Release.Namespace) }}
{{- end }}

{{- /* Replicas in different zones, where there are zones. */}}
{{- define "supervisor.apart" -}}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: topology.kubernetes.io/zone
        labelSelector:
          matchLabels: {{- include "labels.selector" . | nindent 12 }}
{{- end }}

{{- define "supervisor.name" -}}{{ .Values.fullnameOverride }}{{- end }}
{{- define "agent.name" -}}{{ .Values.fullnameOverride }}-agent{{- end }}
{{- define "trainingjob-operator.name" -}}{{ .Values.fullnameOverride }}-trainingjobs{{- end }}
{{- define "keeper.name" -}}{{ .Values.fullnameOverride }}-keeper{{- end }}
{{- define "metrics.name" -}}{{ .Values.fullnameOverride }}-metrics{{- end }}
{{- define "webhook.name" -}}{{ .Values.fullnameOverride }}-webhook{{- end }}
{{- define "audience" -}}{{ .Values.supervisor.settings.tokenAudience | default "job-supervisor.kube-ai.io" }}{{- end }}
{{- define "lease" -}}{{ .Values.supervisor.settings.leaseName | default "job-supervisor" }}{{- end }}

{{- define "name" -}}{{ .Values.nameOverride | default .Chart.Name }}{{- end }}

{{- define "labels.selector" -}}
app.kubernetes.io/name: {{ include "name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- with .pool }}
job-supervisor.kube-ai.io/agent-pool: {{ . }}
{{- end }}
{{- end }}

{{- /* Labels of an object. The chart's own labels take precedence, because Services and tools select by them. */}}
{{- define "labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "name" .root)
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_") }}
{{- with .component }}{{ $_ := set $own "app.kubernetes.io/component" . }}{{ end }}
{{- with .pool }}{{ $_ := set $own "job-supervisor.kube-ai.io/agent-pool" . }}{{ end }}
{{- merge $own (.labels | default dict) .root.Values.commonLabels | toYaml }}
{{- end }}

{{- /*
The metadata of an object.
root, name: required.
component, pool: of the pods that the object belongs to.
labels, annotations: additional ones.
namespace: if it is not the release's. global: the object has none.
*/}}
{{- define "metadata" -}}
name: {{ .name }}
{{- if not .global }}
namespace: {{ .namespace | default .root.Release.Namespace }}
{{- end }}
labels: {{- include "labels" . | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /*
The metadata of pods: `values` are those of the component, `selector` the arguments of `labels.selector`; `annotations` are further ones, optional.
*/}}
{{- define "pod.metadata" -}}
labels: {{- merge (include "labels.selector" .selector | fromYaml) .values.podLabels .selector.root.Values.commonLabels | toYaml | nindent 2 }}
{{- with merge (.annotations | default dict) .values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What the supervisor may do in the namespaces of its jobs. The files are written from the rights that the code declares. */}}
{{- define "supervisor.jobRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, patch, delete]
{{- $kinds := .Values.supervisor.settings.kinds }}
{{- range $path, $_ := .Files.Glob "files/{kinds,queues}/*.yaml" }}
{{- if or (not $kinds) (eq (base (dir $path)) "queues") (has (base $path | trimSuffix ".yaml") $kinds) }}
{{ $.Files.Get $path | trimSuffix "\n" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The namespaces whose pods and jobs are sent to the webhook, as a selector. */}}
{{- define "webhook.namespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{- append .Values.webhook.excludedNamespaces .Release.Namespace | uniq | toYaml | nindent 6 }}
{{- with .Values.supervisor.settings.namespaces }}
  - key: kubernetes.io/metadata.name
    operator: In
    values: {{- toYaml . | nindent 6 }}
{{- end }}
{{- end }}

{{- /* Fields of a pod that both components take from their values. */}}
{{- define "pod.common" -}}
# A Service named like a component would set variables that look like settings.
enableServiceLinks: false
{{- with .values.terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ . }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.podSecurityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Fields of a container that both components take from their values; `handler` is the address of the probes. */}}
{{- define "container.common" -}}
{{- range $name, $path := dict "startupProbe" "/livez" "livenessProbe" "/livez" "readinessProbe" "/readyz" }}
{{- with get $.values $name }}
{{ $name }}: {{- merge (dict "httpGet" (merge (dict "path" $path) $.handler)) . | toYaml | nindent 2 }}
{{- end }}
{{- end }}
{{- with .values.securityContext }}
securityContext: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.envFrom }}
envFrom: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "account" -}}
{{- .values.serviceAccount.name | default (ternary .name "default" .values.serviceAccount.create) }}
{{- end }}

{{- define "supervisor.account" -}}
{{- include "account" (dict "values" .Values.supervisor "name" (include "supervisor.name" .)) }}
{{- end }}

{{- define "agent.account" -}}
{{- include "account" (dict "values" .Values.agent "name" (include "agent.name" .)) }}
{{- end }}

{{- /* The values of each agent pool, as JSON. Without pools, the only one has an empty name. */}}
{{- define "agent.pools" -}}
{{- $pools := dict }}
{{- range $name, $values := .Values.agent.pools | default (dict "" dict) }}
{{- $_ := set $pools $name (mergeOverwrite (omit $.Values.agent "pools" | deepCopy) (deepCopy $values)) }}
{{- end }}
{{- toJson $pools }}
{{- end }}

{{- /* "yes" if an object for Prometheus or Grafana is wanted; `auto` depends on metrics.enabled and, with `kind`, on its CRD. */}}
{{- define "metrics.wanted" -}}
{{- if ne (toString .enabled) "auto" }}{{ ternary "yes" "" .enabled }}
{{- else if .root.Values.metrics.enabled -}}
{{- if or (not .kind) (.root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind)) }}yes{{ end }}
{{- end }}
{{- end }}

{{- /* The bytes of a quantity such as 64Gi. */}}
{{- define "bytes" -}}
{{- $units := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 }}
{{- mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[A-Za-z]*$" .) | int64) }}
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
{{- /* For a port-forward. Other issuers than the supervisor itself may refuse it. */}}
{{- if eq .Values.tls.mode "self" }}{{ $names = append $names "localhost" }}{{ end }}
{{- concat $names .Values.tls.extraNames | uniq | toJson }}
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

{{- define "prices.name" -}}{{ .Values.fullnameOverride }}-prices{{- end }}

{{- define "notifications.name" -}}{{ .Values.fullnameOverride }}-notifications{{- end }}

{{- /* The file of targets. It names files with URLs, which are secret. */}}
{{- define "notifications" -}}
{{- $targets := list }}
{{- range .Values.notifications.targets }}
{{- $targets = append $targets (merge (dict "urlFile" (printf "%s.url" .name)) (omit . "urlSecret")) }}
{{- end }}
{{- dict "cluster" .Values.notifications.cluster "pageUrl" .Values.notifications.pageUrl "targets" $targets | toPrettyJson }}
{{- end }}

{{- /* Files are read at the start: a change of one starts new pods. */}}
{{- define "files.checksums" -}}
{{- if .Values.notifications.targets }}
checksum/notifications: {{ include "notifications" . | sha256sum }}
{{- end }}
{{- if .Values.prices.machines }}
checksum/prices: {{ .Values.prices | toPrettyJson | sha256sum }}
{{- end }}
{{- end }}

{{- /* The URL to which the paths of runbooks are relative; empty if nobody says where they can be read. */}}
{{- define "runbooks.url" -}}
{{- .Values.metrics.rules.runbookUrl | default .Values.supervisor.settings.docsUrl | default "" }}
{{- end }}

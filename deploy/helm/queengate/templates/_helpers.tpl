{{- define "queengate.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "queengate.image" -}}
{{- .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion -}}
{{- end -}}

{{- define "queengate.selector" -}}
app.kubernetes.io/name: queengate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "queengate.labels" -}}
{{ include "queengate.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- /* What a process gives itself to stop is 90 s: budgets beyond would be cut off. */ -}}
{{- define "queengate.grace" -}}
{{- $sum := add (int .drainDelaySeconds) (int .drainTimeSeconds) -}}
{{- if gt (int $sum) 80 -}}
{{- fail "drainDelaySeconds + drainTimeSeconds: want at most 80, since a process stops within 90 s" -}}
{{- end -}}
{{- add (int $sum) 15 -}}
{{- end -}}

{{- define "queengate.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "queengate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "queengate.spread" -}}
- maxSkew: 1
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "queengate.selector" . | nindent 6 }}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "queengate.selector" . | nindent 6 }}
{{- end -}}

{{- /* The addresses of the brokers as gateways find them in the control database. */ -}}
{{- define "queengate.brokerURLs" -}}
{{- $name := include "queengate.name" . -}}
{{- $namespace := .Release.Namespace -}}
{{- range $i := until (int .Values.broker.replicas) -}}
{{- if $i }},{{ end -}}
http://{{ $name }}-broker-{{ $i }}.{{ $name }}-broker.{{ $namespace }}.svc:6632
{{- end -}}
{{- end -}}

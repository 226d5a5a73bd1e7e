{{/* The name of the installation: prefix of the names of all objects (docs/admins/several-schedulers.md). */}}
{{- define "podbridge.fullname" -}}
{{- if (.Values.config).installation }}
{{- .Values.config.installation }}
{{- else if .Values.fullnameOverride }}
{{- .Values.fullnameOverride }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name }}
{{- end }}
{{- end }}
{{- end }}

{{/* Labels that never change: selectors, and objects that an upgrade must not write. Takes (list root component). */}}
{{- define "podbridge.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: podbridge
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of all other objects. Takes (list root component). */}}
{{- define "podbridge.labels" -}}
{{- $root := index . 0 -}}
{{ include "podbridge.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: podbridge
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels and annotations of an object that the chart owns alone. Takes (list root component [annotations]). */}}
{{- define "podbridge.labelsAndAnnotations" -}}
{{- $root := index . 0 -}}{{- $annotations := dict -}}
{{- if gt (len .) 2 }}{{ $annotations = index . 2 | default dict }}{{ end -}}
labels:
  {{- include "podbridge.labels" (list $root (index . 1)) | nindent 2 }}
{{- with mergeOverwrite (deepCopy $root.Values.commonAnnotations) $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Metadata of an object in the namespace of the release. Takes (list root component name [annotations]). */}}
{{- define "podbridge.metadata" -}}
{{- $root := index . 0 -}}{{- $annotations := dict -}}
{{- if gt (len .) 3 }}{{ $annotations = index . 3 | default dict }}{{ end -}}
name: {{ index . 2 }}
namespace: {{ $root.Release.Namespace }}
{{ include "podbridge.labelsAndAnnotations" (list $root (index . 1) $annotations) }}
{{- end }}

{{/*
Metadata of a workload: the annotation of kube-score names the checks that it fails for a reason in values.yaml.
Takes (list root component name annotations values).
*/}}
{{- define "podbridge.workloadMetadata" -}}
{{- $root := index . 0 -}}{{- $values := index . 4 -}}{{- $ignored := list -}}
{{- if not (($values.resources | default dict).limits | default dict).cpu }}{{ $ignored = append $ignored "container-resources" }}{{ end -}}
{{- if ne (include "podbridge.pullPolicy" (list $root $values)) "Always" }}{{ $ignored = append $ignored "container-image-pull-policy" }}{{ end -}}
{{- /* helm test connects to all that the parts connect to */ -}}
{{- if or (not $root.Values.networkPolicy.enabled) (eq (index . 1) "test") }}{{ $ignored = append $ignored "pod-networkpolicy" }}{{ end -}}
{{- /* they have one replica, which clients reach by an ordinary Service */ -}}
{{- if has (index . 1) (list "nats" "redis") }}{{ $ignored = append $ignored "statefulset-has-servicename" }}{{ end -}}
{{- $annotations := dict -}}
{{- with $ignored }}{{ $_ := set $annotations "kube-score/ignore" (join "," .) }}{{ end -}}
{{- include "podbridge.metadata" (list $root (index . 1) (index . 2) (mergeOverwrite $annotations (index . 3 | default dict))) }}
{{- end }}

{{/* The service account of a part. Takes (list root part); part "run" is all parts in one process. */}}
{{- define "podbridge.account" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- $name := include "podbridge.fullname" $root -}}
{{- if eq $part "run" }}
{{- $name }}
{{- else }}
{{- default (printf "%s-%s" $name $part) (index $root.Values $part).serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The parts that have an account, as a JSON list. */}}
{{- define "podbridge.parts" -}}
{{- $parts := list "admission" "scheduler" "controllers" -}}
{{- if .Values.rbac.run }}{{ $parts = append $parts "run" }}{{ end -}}
{{- toJson $parts }}
{{- end }}

{{/* User names as a CEL list. Takes (list root parts). */}}
{{- define "podbridge.users" -}}
{{- $root := index . 0 -}}{{- $users := list -}}
{{- range index . 1 }}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $root.Release.Namespace (include "podbridge.account" (list $root .)) | quote) }}
{{- end -}}
[{{ join ", " $users }}]
{{- end }}

{{/* The image of a container. Takes (list root values), values.image overrides the top-level image. */}}
{{- define "podbridge.image" -}}
{{- $root := index . 0 -}}
{{- $image := mergeOverwrite (deepCopy $root.Values.image) (deepCopy ((index . 1).image | default dict)) -}}
{{- $repository := $image.repository -}}
{{- with $image.registry }}{{ $repository = printf "%s/%s" . $repository }}{{ end -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end }}
{{- end }}

{{/* When a kubelet pulls the image of a part. Takes (list root values). */}}
{{- define "podbridge.pullPolicy" -}}
{{- $values := index . 1 -}}
{{- coalesce $values.imagePullPolicy ($values.image | default dict).pullPolicy (index . 0).Values.image.pullPolicy }}
{{- end }}

{{/* An address to listen on as it stands before a port: the value, else all addresses. Takes (list root value). */}}
{{- define "podbridge.listenHost" -}}
{{- default (ternary "[::]" "0.0.0.0" (eq (first (index . 0).Values.ipFamilies | default "") "IPv6")) (index . 1) }}
{{- end }}

{{/* Whether pools are configured: "true" or nothing. */}}
{{- define "podbridge.hasPools" -}}
{{- $config := include "podbridge.config" . | fromYaml -}}
{{- $pools := $config.pools | default dict -}}
{{- if or ($pools.nats).servers $pools.interlink $pools.nunet }}true{{ end }}
{{- end }}

{{/* Whether the controllers may bind pods to virtual nodes, for late binding: "true" or nothing. */}}
{{- define "podbridge.hasRace" -}}
{{- $config := include "podbridge.config" . | fromYaml -}}
{{- if ternary ((($config.pools).race).enabled) .Values.rbac.race (kindIs "invalid" .Values.rbac.race) }}true{{ end }}
{{- end }}

{{/* The image of another project. Takes (list root image). */}}
{{- define "podbridge.otherImage" -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- with $image.registry }}{{ $repository = printf "%s/%s" . $repository }}{{ end -}}
{{- if $image.digest }}{{ $repository }}@{{ $image.digest }}{{ else }}{{ $repository }}:{{ $image.tag }}{{ end }}
{{- end }}

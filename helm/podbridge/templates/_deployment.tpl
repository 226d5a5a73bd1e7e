{{/* A port of the configuration, or its default. Takes (list section key default); 0 if it is null. */}}
{{- define "podbridge.port" -}}
{{- $section := index . 0 | default dict -}}
{{- if hasKey $section (index . 1) }}{{ int (index $section (index . 1)) }}{{ else }}{{ index . 2 }}{{ end }}
{{- end }}

{{/* A list of the component, else the one of all components. Takes (list root values key). */}}
{{- define "podbridge.either" -}}
{{- with coalesce (index (index . 1) (index . 2)) (index (index . 0).Values (index . 2)) }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The lists of all components and of this one. Takes (list root values key). */}}
{{- define "podbridge.both" -}}
{{- with concat (index (index . 0).Values (index . 2) | default list) (index (index . 1) (index . 2) | default list) }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Fields of a pod that all components have in common. Takes (list root component values). */}}
{{- define "podbridge.podFields" -}}
{{- $root := index . 0 -}}{{- $component := index . 1 -}}{{- $values := index . 2 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "podbridge.either" (list $root $values "priorityClassName") }}
priorityClassName: {{ . }}
{{- end }}
{{- if not (has $component (list "nats" "redis")) }}
{{- with $root.Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
securityContext:
  {{- toYaml (mergeOverwrite (deepCopy $root.Values.podSecurityContext) ($values.podSecurityContext | default dict)) | nindent 2 }}
{{- with include "podbridge.either" (list $root $values "nodeSelector") }}
nodeSelector:
  {{- . | nindent 2 }}
{{- end }}
{{- with include "podbridge.either" (list $root $values "tolerations") }}
tolerations:
  {{- . | nindent 2 }}
{{- end }}
{{- with include "podbridge.either" (list $root $values "affinity") }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
topologySpreadConstraints:
{{- with include "podbridge.either" (list $root $values "topologySpreadConstraints") }}
  {{- . | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "podbridge.selectorLabels" (list $root $component) | nindent 8 }}
{{- end }}
{{- end }}

{{/* Annotations of a pod: checksums, then values. Takes (list root values checksums). */}}
{{- define "podbridge.podAnnotations" -}}
{{- $root := index . 0 -}}
{{- with mergeOverwrite (deepCopy (index . 2)) (deepCopy $root.Values.podAnnotations) ((index . 1).podAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Deployment of a part of the hub. Takes (list root part). */}}
{{- define "podbridge.deployment" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- $values := index $root.Values $part -}}
{{- $config := include "podbridge.config" $root | fromYaml -}}
{{- $name := printf "%s-%s" (include "podbridge.fullname" $root) $part -}}
{{- $health := include "podbridge.port" (list $config.serving "healthPort" 8081) | int -}}
{{- $metrics := include "podbridge.port" (list $config.serving "metricsPort" 8080) | int -}}
{{- $tls := "" -}}
{{- if eq $part "admission" }}
{{- $tls = $values.tls.existingSecret }}
{{- if $values.certManager.enabled }}{{ $tls = printf "%s-cert-manager" $name }}{{ end }}
{{- end }}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "podbridge.workloadMetadata" (list $root $part $name $values.annotations $values) | nindent 2 }}
spec:
  replicas: {{ $values.replicas }}
  revisionHistoryLimit: {{ $root.Values.revisionHistoryLimit }}
  {{- $strategy := $values.strategy | default dict }}
  {{- if eq $strategy.type "Recreate" }}
  {{- $strategy = dict "type" "Recreate" }}
  {{- else if and $values.hostNetwork (eq (toJson $strategy.rollingUpdate) `{"maxSurge":1,"maxUnavailable":0}`) }}
  {{- $strategy = dict "type" "RollingUpdate" "rollingUpdate" (dict "maxSurge" 0 "maxUnavailable" 1) }}
  {{- end }}
  {{- with $strategy }}
  strategy:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  selector:
    matchLabels:
      {{- include "podbridge.selectorLabels" (list $root $part) | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "podbridge.selectorLabels" (list $root $part) | nindent 8 }}
        {{- if and ($config.hints | default dict).port (ne $part "admission") }}
        bridge.vk.io/hints: "true"
        {{- end }}
        {{- with mergeOverwrite (deepCopy $root.Values.commonLabels) (deepCopy $root.Values.podLabels) ($values.podLabels | default dict) }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- $checksums := dict "checksum/config" (include "podbridge.config" $root | sha256sum) }}
      {{- include "podbridge.podAnnotations" (list $root $values $checksums) | trim | nindent 6 }}
    spec:
      serviceAccountName: {{ include "podbridge.account" (list $root $part) }}
      automountServiceAccountToken: true
      {{- if $values.hostNetwork }}
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
      {{- include "podbridge.podFields" (list $root $part $values) | trim | nindent 6 }}
      {{- with $values.initContainers }}
      initContainers:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ $part }}
          image: {{ include "podbridge.image" (list $root $values) }}
          imagePullPolicy: {{ include "podbridge.pullPolicy" (list $root $values) }}
          command: [podbridge]
          args:
            - {{ $part }}
            - --config=/etc/podbridge/config/config.yaml
            {{- with include "podbridge.both" (list $root $values "extraArgs") }}
            {{- . | nindent 12 }}
            {{- end }}
          env:
            - name: POD_NAME
              valueFrom: {fieldRef: {fieldPath: metadata.name}}
            - name: POD_IP
              valueFrom: {fieldRef: {fieldPath: status.podIP}}
            {{- with include "podbridge.both" (list $root $values "extraEnv") }}
            {{- . | nindent 12 }}
            {{- end }}
          {{- with include "podbridge.both" (list $root $values "extraEnvFrom") }}
          envFrom:
            {{- . | nindent 12 }}
          {{- end }}
          ports:
            {{- if eq $part "admission" }}
            - {name: webhook, containerPort: {{ include "podbridge.port" (list $config.admission "port" 9443) }}}
            {{- end }}
            {{- if and (eq $part "controllers") (include "podbridge.hasPools" $root) }}
            - {name: kubelet, containerPort: {{ include "podbridge.port" (list $config.pools "kubeletPort" 10250) }}}
            {{- end }}
            {{- with ($config.hints | default dict).port }}
            {{- if ne $part "admission" }}
            - {name: hints, containerPort: {{ int . }}}
            {{- end }}
            {{- end }}
            {{- if $health }}
            - {name: health, containerPort: {{ $health }}}
            {{- end }}
            {{- if $metrics }}
            - {name: metrics, containerPort: {{ $metrics }}}
            {{- end }}
          {{- if $health }}
          startupProbe:
            httpGet: {path: /livez, port: health}
            {{- toYaml $values.startupProbe | nindent 12 }}
          livenessProbe:
            httpGet: {path: /livez, port: health}
            {{- toYaml $values.livenessProbe | nindent 12 }}
          readinessProbe:
            httpGet: {path: /readyz, port: health}
            {{- toYaml $values.readinessProbe | nindent 12 }}
          {{- end }}
          {{- if eq $part "admission" }}
          # the API server calls this replica until it knows the addresses without it
          lifecycle: {preStop: {sleep: {seconds: 5}}}
          {{- end }}
          {{- with $values.resources }}
          resources:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          securityContext:
            {{- toYaml (mergeOverwrite (deepCopy $root.Values.securityContext) ($values.securityContext | default dict)) | nindent 12 }}
          volumeMounts:
            - {name: config, mountPath: /etc/podbridge/config, readOnly: true}
            - {name: tmp, mountPath: /tmp}
            {{- if $tls }}
            - {name: webhook-tls, mountPath: /etc/podbridge/webhook-tls, readOnly: true}
            {{- end }}
            {{- with include "podbridge.secretMounts" (list $root $part) | trim }}
            {{- . | nindent 12 }}
            {{- end }}
            {{- with include "podbridge.both" (list $root $values "extraVolumeMounts") }}
            {{- . | nindent 12 }}
            {{- end }}
        {{- with $values.extraContainers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        - name: config
          configMap: {name: {{ include "podbridge.fullname" $root }}-config}
        - name: tmp
          emptyDir: {sizeLimit: 64Mi}
        {{- with $tls }}
        - name: webhook-tls
          secret: {secretName: {{ . }}, defaultMode: 0440}
        {{- end }}
        {{- with include "podbridge.secretVolumes" (list $root $part) | trim }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- with include "podbridge.both" (list $root $values "extraVolumes") }}
        {{- . | nindent 8 }}
        {{- end }}
{{- end }}

{{/* The Secrets of a part of the hub, mounted below /etc/podbridge. Takes (list root part). */}}
{{- define "podbridge.secretMounts" -}}
{{- $root := index . 0 -}}
{{- range $volume := include "podbridge.secrets" . | fromYamlArray }}
- {name: {{ $volume.name }}, mountPath: /etc/podbridge/{{ $volume.name }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "podbridge.secretVolumes" -}}
{{- range $volume := include "podbridge.secrets" . | fromYamlArray }}
- name: {{ $volume.name }}
  secret:
    secretName: {{ $volume.secret }}
    defaultMode: 0440
    {{- with $volume.items }}
    items:
      {{- toYaml . | nindent 6 }}
    {{- end }}
{{- end }}
{{- end }}

{{/* A YAML list of {name, secret, items}: what a part mounts. */}}
{{- define "podbridge.secrets" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- if has $part (list "scheduler" "controllers") }}
{{- with include "podbridge.jwtSecret" $root | default "{}" | fromJson }}
- name: slurm-jwt
  secret: {{ .name }}
  items: [{key: {{ .key | quote }}, path: token}]
{{- end }}
{{- if and $root.Values.slurm.tls.existingSecret (include "podbridge.hasSlurm" $root) }}
- name: slurm-tls
  secret: {{ $root.Values.slurm.tls.existingSecret }}
{{- end }}
{{- end }}
{{- if and $root.Values.hints.enabled (has $part (list "scheduler" "controllers")) }}
- name: hints
  secret: {{ required "hints.existingSecret is required with hints.enabled: a Secret with token, tls.crt and tls.key" $root.Values.hints.existingSecret }}
{{- end }}
{{- if has $part (list "controllers" "plugin") }}
{{- $nats := $root.Values.nats }}
{{- if $nats.enabled }}
- name: nats
  {{- if $nats.existingSecret }}
  secret: {{ $nats.existingSecret }}
  items: [{key: hub.seed, path: hub.seed}]
  {{- else }}
  secret: {{ include "podbridge.fullname" $root }}-nats
  items: [{key: password, path: password}]
  {{- end }}
{{- if $nats.tls.existingSecret }}
- name: nats-ca
  secret: {{ $nats.tls.existingSecret }}
  items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- else if $nats.client.existingSecret }}
- name: nats
  secret: {{ $nats.client.existingSecret }}
{{- end }}
{{- end }}
{{- if eq $part "controllers" }}
{{- with $root.Values.redis }}
{{- if .enabled }}
- name: redis
  secret: {{ default (printf "%s-redis" (include "podbridge.fullname" $root)) .existingSecret }}
  items: [{key: password, path: password}]
{{- end }}
{{- end }}
{{- end }}
{{- range $root.Values.secretMounts }}
{{- if has $part (.parts | default (list "controllers")) }}
- name: {{ .name }}
  secret: {{ .existingSecret }}
{{- end }}
{{- end }}
{{- end }}

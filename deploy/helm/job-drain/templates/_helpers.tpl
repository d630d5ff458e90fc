{{/* Name of all objects, of at most 30 characters: each adds its own part. */}}
{{- define "drain.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 30 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of all pods of the release. */}}
{{- define "drain.release" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels by which a deployment finds its pods. Takes the root and the component. */}}
{{- define "drain.selector" -}}
{{ include "drain.release" .root }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "drain.labels" -}}
{{ include "drain.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | quote }}
{{- end -}}

{{- define "drain.image" -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote -}}
{{- end -}}

{{/* Fields of a pod that all programs share. Takes the root. */}}
{{- define "drain.pod" -}}
automountServiceAccountToken: false
{{- with .root.Values.serviceAccount.name }}
serviceAccountName: {{ . }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ toYaml .root.Values.podSecurityContext | nindent 2 }}
volumes:
  - name: tmp
    emptyDir: {}
{{- end -}}

{{/* Where pods may run. Takes the values of a program. */}}
{{- define "drain.nodes" -}}
{{- with .nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Fields of a container that all programs share. Takes the root and the values of the program. */}}
{{- define "drain.container" -}}
image: {{ include "drain.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext: {{ toYaml .root.Values.securityContext | nindent 2 }}
{{- with .values.resources }}
resources: {{ toYaml . | nindent 2 }}
{{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- with .root.Values.envFrom }}
envFrom: {{ toYaml . | nindent 2 }}
{{- end }}
env:
  - name: DRAIN_DATABASE_URL
    valueFrom:
      secretKeyRef: {{ toYaml .values.databaseSecret | nindent 8 }}
  - name: DRAIN_REDIS_URL
    valueFrom:
      secretKeyRef: {{ toYaml .root.Values.redisSecret | nindent 8 }}
  {{- with .root.Values.jobs }}
  - name: DRAIN_JOBS
    value: {{ . | quote }}
  {{- end }}
  - name: DRAIN_METRICS_HOST
    value: "0.0.0.0"
  - name: DRAIN_METRICS_PORT
    value: "9186"
  - name: DRAIN_WORK_METRICS_PORT
    value: "9186"
  {{- range $name, $value := .root.Values.env }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- end -}}

{{/* Probes of the port that `drain run` and `drain work` serve. A fault has to last for a minute to restart a pod. */}}
{{- define "drain.probes" -}}
ports:
  - name: metrics
    containerPort: 9186
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 15
  timeoutSeconds: 3
  failureThreshold: 4
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{- define "gda-probe.labels" -}}
app.kubernetes.io/name: gda-probe
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What the pods of both workloads share. */}}
{{- define "gda-probe.pod" -}}
automountServiceAccountToken: false
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
tolerations:
  - key: nvidia.com/gpu
    operator: Exists
securityContext:
  {{- if .Values.lockMemory }}
  runAsUser: 0
  {{- else }}
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  {{- end }}
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: tmp
    emptyDir:
      medium: Memory
      sizeLimit: 64Mi
{{- end }}

{{- /* What the containers of both workloads share. */}}
{{- define "gda-probe.container" -}}
name: gda-probe
# Build it on the image of your transport (docs/fleets.md), and name your registry.
image: {{ .Values.image }}
env:
  # The CUDA driver keeps compiled kernels there.
  - name: HOME
    value: /tmp
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
    {{- if .Values.lockMemory }}
    add: [IPC_LOCK]
    {{- end }}
resources:
  # Requests are equal to limits where they are not given, as devices and huge pages require.
  limits:
    cpu: {{ .Values.cpu | quote }}
    memory: {{ .Values.memory }}
    vpc.amazonaws.com/efa: {{ .Values.adapters }}
    {{- with .Values.gpus }}
    nvidia.com/gpu: {{ . }}
    {{- end }}
    {{- with .Values.hugepages }}
    hugepages-2Mi: {{ . }}
    {{- end }}
volumeMounts:
  - name: tmp
    mountPath: /tmp
{{- end }}

{{- define "gda-probe.options" -}}
--for, {{ .Values.stack }}{{ if not .Values.gpus }}, --gpu, none{{ end }}
{{- end }}

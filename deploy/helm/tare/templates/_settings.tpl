{{- define "tare.settings" -}}
{{- with .Values.profile }}
profile: {{ . }}
{{- end }}
max-series: {{ int .Values.maxSeries }}
{{- if .Values.webConfig.secret }}
web.config.file: /etc/tare-web/web.yaml
{{- end }}
{{- with .Values.rules }}
rules:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

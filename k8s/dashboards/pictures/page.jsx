// A dashboard drawn by Grafana's own components, with its variables set to all. `window.drawing` has its JSON (`board`), the
// time range in seconds since 1970 (`start`, `end`) and `answers`: panel id → for each target Prometheus' `result`.
import { createTheme, dateTime, FieldType, getDisplayProcessor, LoadingState, ThemeContext } from '@grafana/data';
import { BigValue, BigValueColorMode, BigValueGraphMode, GlobalStyles, PanelChrome, TimeSeries } from '@grafana/ui';
import { createRoot } from 'react-dom/client';

const { board, answers, start, end } = window.drawing;
const theme = createTheme({ colors: { mode: 'light' } });
const COLUMN = 64;
const ROW = 36;
const LINE = { drawStyle: 'line', lineWidth: 1, axisPlacement: 'auto', showPoints: 'never', spanNulls: false };
const range = { from: dateTime(start * 1000), to: dateTime(end * 1000), raw: { from: 'now-1h', to: 'now' } };

const legend = (format, labels) => format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, name) => labels[name] ?? '');

function frames(panel) {
  const { custom, ...defaults } = panel.fieldConfig.defaults;
  return panel.targets.flatMap((target, index) =>
    (answers[panel.id]?.[index] ?? []).map((series) => {
      const samples = series.values ?? [series.value];
      const time = { name: 'time', type: FieldType.time, config: {}, values: samples.map(([at]) => at * 1000) };
      const value = {
        name: 'value',
        type: FieldType.number,
        labels: series.metric,
        values: samples.map(([, text]) => (text === 'NaN' ? null : Number(text))),
        config: {
          color: { mode: panel.type === 'stat' ? 'thresholds' : 'palette-classic' },
          ...defaults,
          custom: { ...LINE, ...custom },
          displayName: legend(target.legendFormat, series.metric),
        },
      };
      return { refId: target.refId, length: samples.length, fields: [time, value] };
    })
  );
}

function finished(found) {
  found.forEach((frame, index) =>
    frame.fields.forEach((field) => {
      field.state = { seriesIndex: index, displayName: field.config.displayName };
      field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
    })
  );
  return found;
}

function Lines({ panel, width, height }) {
  const found = finished(frames(panel));
  if (!found.length) return <span>No data</span>;
  return (
    <TimeSeries
      frames={found}
      structureRev={1}
      width={width}
      height={height}
      timeRange={range}
      timeZone="utc"
      legend={{ ...panel.options.legend, displayMode: 'list', calcs: [] }}
      options={panel.options}
    />
  );
}

function Number_({ panel, width, height }) {
  const [frame] = finished(frames(panel));
  if (!frame) return <span>No data</span>;
  const value = frame.fields[1];
  const shown = value.display(value.values[value.values.length - 1]);
  return (
    <BigValue
      width={width}
      height={height}
      theme={theme}
      value={{ ...shown, title: '' }}
      colorMode={panel.fieldConfig.defaults.thresholds ? BigValueColorMode.Value : BigValueColorMode.None}
      graphMode={BigValueGraphMode.None}
    />
  );
}

// Grafana's heat map is no component of its packages: buckets are shown as shares of their row.
function Heat({ panel, width, height }) {
  const rows = (answers[panel.id]?.[0] ?? []).sort((a, b) => Number(b.metric.le) - Number(a.metric.le));
  const counted = rows.map((row, index) => {
    const below = new Map((rows[index + 1]?.values ?? []).map(([at, text]) => [at, Number(text)]));
    return row.values.map(([at, text]) => [at, Math.max(0, Number(text) - (below.get(at) ?? 0))]);
  });
  const most = Math.max(1e-9, ...counted.flat().map(([, count]) => count));
  const cells = counted.flatMap((row, index) =>
    row.map(([at, count]) => (
      <rect
        key={`${index} ${at}`}
        x={((at - start) / (end - start)) * width}
        y={(index / rows.length) * height}
        width={(15 / (end - start)) * width}
        height={height / rows.length}
        fill={count ? `rgba(224, 80, 60, ${0.1 + (0.9 * count) / most})` : 'transparent'}
      />
    ))
  );
  return (
    <svg width={width} height={height}>
      {cells}
    </svg>
  );
}

const VIEWS = { timeseries: Lines, stat: Number_, heatmap: Heat };

function Board() {
  const bottom = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ position: 'relative', width: 24 * COLUMN, height: bottom * ROW + 60, background: '#f4f5f5' }}>
        <h2 style={{ position: 'absolute', left: 12, top: 8 }}>{board.title}</h2>
        {board.panels.map((panel) => {
          const { x, y, w, h } = panel.gridPos;
          const place = { position: 'absolute', left: x * COLUMN + 4, top: y * ROW + 52 };
          if (panel.type === 'row') {
            return (
              <h4 key={panel.id} style={place}>
                {panel.title}
              </h4>
            );
          }
          const View = VIEWS[panel.type];
          return (
            <div key={panel.id} style={place} data-panel={panel.title}>
              <PanelChrome title={panel.title} width={w * COLUMN - 8} height={h * ROW - 8} loadingState={LoadingState.Done}>
                {(width, height) => <View panel={panel} width={width} height={height} />}
              </PanelChrome>
            </div>
          );
        })}
      </div>
    </ThemeContext.Provider>
  );
}

createRoot(document.getElementById('root')).render(<Board />);

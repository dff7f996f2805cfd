// The types of the data that Go writes into the page. internal/results/report/html_data.go and the files beside it
// describe the fields. Values are in seconds, bytes and fractions of 1.

export interface Arm { name: string; baseline: boolean; twin: boolean }
export interface Level { name: string; rest: string; numbers: Record<string, number> }
export interface Metric { name: string; label: string; unit: string; lag: boolean; headline: boolean;
  ladder: string; rung: string }
export interface Estimate {
  metric: number; arm: number; level: number; value: number; lo: number | null; hi: number | null; text: string;
  change: number | null; changeLo: number | null; changeHi: number | null; resolved: boolean; verdict: string;
}
export interface Point {
  q: number; value: number; lo: number | null; hi: number | null; text: string;
  diff: number | null; diffLo: number | null; diffHi: number | null; verdict: string; visible: number | null;
}
export interface Curve { arm: number; level: number; points: Point[] }
export interface Model {
  metric: number; arm: number; fixed: number; slopes: Record<string, number>; range: Record<string, [number, number]>;
    linear: boolean; caption: string;
}
export interface Part { arm: number; level: number; group: string; part: string; value: number; text: string }
export interface CPUSum { arm: number; level: number; idle: number; capacity: number; trials: number }
export interface Trial {
  index: number; block: number; arm: number; level: number; at: number; valid: boolean; why: string;
  values: Record<string, number>; texts: Record<string, string>;
}
export interface Limit { arm: number; level: number; limit: number | null; used: number; lo: number | null;
  hi: number | null; text: string; throttled: string }
export interface Stair { arm: number; level: number; kind: string; step: string; value: number; lo: number | null;
  hi: number | null; text: string }
export interface Placed extends Part { unit: string }
export interface CoursePart { of: string; kind: string; values: (number | null)[] }
export interface Course { arm: number; level: number; name: string; unit: string; trial: number; of: number;
  seconds: number[]; parts: CoursePart[] }
export interface Data {
  placed: Placed[]; courses: Course[];
  arms: Arm[]; levels: Level[]; metrics: Metric[]; estimates: Estimate[]; curves: Curve[]; factor: string;
  models: Model[]; cpu: Part[]; factorName: string; limits: Limit[]; limitParts: Part[]; ran: Part[]; stairs: Stair[];
  usable: number | null;
  cpuSum: CPUSum[]; memory: Part[]; trials: Trial[];
}
